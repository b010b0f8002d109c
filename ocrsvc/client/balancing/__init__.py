"""Which of several services a request goes to, and when it goes to another one: decisions without sockets."""
