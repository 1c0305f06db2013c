"""The run function: continues turns whose process died or handed them over, and runs background turns.

Its sweep, once a minute, finds such turns and deletes what is marked as deleted.
"""

from omniagent.app.on_lambda import get_application
from omniagent.app.run_jobs import RunJobs
from omniagent.lambda_runtime.job_handler import job_handler
from omniagent.lambda_runtime.snapshots import before_snapshot
from project import project

application = get_application(project)
handler = job_handler(RunJobs(application))
before_snapshot(application.close, application.load)
