"""`specrs serve`: an HTTP server that speaks OpenAI's API, on one batch.

A body becomes checked parameters, these become requests of the batch, and what comes of them
becomes a reply or a stream of events. Endpoints are written once for both: `exchange` has what is
HTTP, `choices` what is text, `engine` the batch, `process` the life of the server.
"""
