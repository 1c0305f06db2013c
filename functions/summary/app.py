"""The summary function: summaries, the check for models that end, index builds."""

from omniagent.app.on_lambda import get_application
from omniagent.app.summary_jobs import SummaryJobs
from omniagent.lambda_runtime.job_handler import job_handler
from omniagent.lambda_runtime.snapshots import before_snapshot
from project import project

application = get_application(project)
handler = job_handler(SummaryJobs(application))
before_snapshot(application.close, application.load)
