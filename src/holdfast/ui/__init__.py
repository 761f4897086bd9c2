"""The live page: a server for browsers, and the same page as one file. Only the server needs starlette and uvicorn."""
