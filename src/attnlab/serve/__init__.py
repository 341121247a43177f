"""The page of attnlab: a local web application that shows what the commands compute.

server.py     the process: reads requests, runs the tasks of routes, sends JSON and the files of the page
access.py     who may talk to the server: token, cookie, Host and Origin; limits and headers
worker.py     processes that compute for the server, one task at a time, ended when a request is cancelled
routes.py     the options of the server, and the declaration of a route
design.py, ask.py, runs.py, mechanisms.py    the views: records of requests and answers, and tasks; sheets/ has an example
static/       the page: plain ES modules, one per view

The server computes nothing itself: tasks call what the commands call. Needs Starlette and uvicorn
(pip install 'attnlab[serve]'), which nothing else imports.
"""
