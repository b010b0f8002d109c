"""The WSGI application: `gunicorn -c gunicorn.conf.py wsgi:app`."""

from ocrsvc.worker.hooks import build_app

app = build_app()
