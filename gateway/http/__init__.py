"""The HTTP face of the gateway: the only files that know FastAPI and Starlette."""
