"""An engine and an adapter for ocrsvc, in a package of their own."""
