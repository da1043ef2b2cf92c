"""/ws/jobs/<id>/: a message about a job at each change, until the job has ended."""

import asyncio
from collections.abc import Awaitable

from asgiref.sync import sync_to_async

from dashboard.jobs.selectors import job_get
from dashboard.models import Job
from dashboard.shared.choices import JobState
from dashboard.web.websockets import PushConsumer

POLL_S = 0.5


class JobConsumer(PushConsumer):
    async def prepare(self) -> Awaitable[None]:
        pk = int(self.scope["url_route"]["kwargs"]["pk"])
        return self._push(await sync_to_async(job_get)(pk))

    async def _push(self, job: Job) -> None:
        """Send the job at each change. `log` holds the text since the last message."""
        sent, known = 0, None
        while True:
            values = (job.state, job.progress, job.step, job.error, job.cancel_requested, len(job.log))
            if values != known:
                await self.send_json({"type": "job", **_describe(job), "log": job.log[sent:]})
                sent, known = len(job.log), values
            if job.state not in (JobState.QUEUED, JobState.RUNNING):
                await self.close()
                return
            await asyncio.sleep(POLL_S)
            job = await sync_to_async(job_get)(job.pk)


def _describe(job: Job) -> dict[str, object]:
    return {
        "id": job.pk,
        "state": job.state,
        "progress": job.progress,
        "step": job.step,
        "error": job.error,
        "result": job.result,
        "cancel_requested": job.cancel_requested,
    }
