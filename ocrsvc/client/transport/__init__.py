"""HTTP/1.1 over sockets that never block: what is waited for is said to whoever waits, a thread or an event loop."""
