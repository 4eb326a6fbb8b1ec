"""What can go wrong with a request, in types that a server can map to its answers."""


class RequestRefused(ValueError):
    """The engine can never serve the request; the message names the field, the value and the remedy."""


class QueueFull(RuntimeError):
    """The request cannot be taken now, because too much waits already; the same request may be taken later."""


class EngineFailed(RuntimeError):
    """A step failed, so every request in the engine has ended. The original exception is `__cause__`."""


REFUSALS = (RequestRefused, QueueFull)
"""What adding a request may raise. It then leaves no trace, and no other request is harmed."""
