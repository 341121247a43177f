"""The page of attnlab: a local web application that shows what the commands compute.

access.py     who may talk to the server: token, cookie, Host and Origin; limits and headers
worker.py     processes that compute for the server, one request at a time, ended when a request is cancelled
lab.py        what the routes share: the folder of runs, workers, options; errors as JSON
app.py        the application: routes, files of the page
server.py     a socket, a token, and uvicorn
design.py, ask.py, runs.py, mechanisms.py    the routes of each view; what takes long runs in a worker
design_tasks.py    what the view design has a worker compute: the solver, noise, sheets; sheets/ has an example
models.py, interventions.py    tasks of the view ask that need a model: answers, attention, changed activations
events.py      server-sent events
documents.py, samples.py    what workers do for the view of runs
static/       the page: plain ES modules, one per view

The server computes nothing itself: routes check their input, and call what the commands call. Needs FastAPI and uvicorn
(pip install 'attnlab[serve]'), which nothing else imports.
"""
