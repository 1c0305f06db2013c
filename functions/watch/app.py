"""The watch function: checks whether the process of a turn is alive."""

from omniagent.app.on_lambda import get_application
from omniagent.app.watch_jobs import WatchJobs
from omniagent.lambda_runtime.job_handler import job_handler
from omniagent.lambda_runtime.snapshots import before_snapshot
from project import project

application = get_application(project)
handler = job_handler(WatchJobs(application))
before_snapshot(application.close)
