"""REST routes about tasks; they read snapshots and the journal, and never wait for the loop."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Annotated, Any, BinaryIO

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from device_runtime.aggregator.errors import DatabaseError, RollbackError, RunFolderError
from device_runtime.aggregator.storage import run_files
from device_runtime.aggregator.storage.model_versions import SERVED, check_rollback, versions_in
from device_runtime.aggregator.storage.model_versions import Version as Made
from device_runtime.broker.security import audit
from device_runtime.broker.security.audit import AuditEntry, AuditError, Operator, recorded
from device_runtime.broker.servers.places import Stage
from device_runtime.broker.wire.messages import Status

from .connections import place_of
from .devices import DeviceFilter
from .journal import Filter
from .metrics import ProcessMetrics
from .security import Token
from .shapes import (
    DevicePage,
    Entries,
    ModelVersion,
    RollbackAnswer,
    RoundPage,
    TaskInfo,
    TaskStatus,
    measured,
)
from .watch import PAGE_LIMIT, ServedTask

STREAMS = 32
"""The most live views at one time; any more get 503."""
EVENT_S = 0.5
"""Seconds between two events of a live view, at least; each shows the latest state."""
COMMENT_S = 15.0
"""Seconds of silence after which a live view gets a comment, to keep the connection open."""
PART_BYTES = 1 << 20
"""Bytes of a model that are read at once."""

bearer = HTTPBearer(auto_error=False, description="The token of http.token_file.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
Name = Annotated[str, Path(description="Name of the task.", max_length=64)]
Limit = Annotated[int, Query(ge=1, le=PAGE_LIMIT, description="How many, at most.")]
Text = Annotated[str | None, Query(max_length=200)]
Number = Annotated[int, Query(ge=0, lt=2**63)]


class TokenGuard:
    """Refuses requests without the token. `name`: of its file, which names it in the audit log."""

    def __init__(self, token: Token, name: str = "") -> None:
        self._token, self._name = token, name

    def __call__(self, request: Request, credentials: Credentials) -> None:
        """Raises HTTPException 401. A connection that shows the token keeps its place from then on."""
        if not self.knows(credentials):
            text = "a token is needed: Authorization: Bearer TOKEN, as in http.token_file"
            raise HTTPException(401, text, {"WWW-Authenticate": 'Bearer realm="device-runtime"'})
        if not self.open and (place := place_of(request.scope["state"])):
            place.enter(Stage.PROVEN)

    def operator(self, request: Request) -> Operator:
        """Who acts by this request, for the audit log."""
        return Operator(f"token {self._name}".strip(), request.client.host if request.client else "")

    @property
    def open(self) -> bool:
        """Whether no token is required."""
        return not self._token.needed

    def knows(self, credentials: HTTPAuthorizationCredentials | None) -> bool:
        """Whether the credentials hold the token."""
        return self._token.fits(credentials.credentials if credentials else None)


class TaskRoutes:
    """The routes about tasks. When the service stops, it sets `closing`, which ends live views."""

    def __init__(
        self,
        hosted: list[ServedTask],
        guard: TokenGuard,
        metrics: ProcessMetrics,
        audited: Sequence[pathlib.Path] = (),
    ) -> None:
        """`audited`: the folders whose audit logs are shown."""
        self._audited = audited
        self._hosted = {service.task.name: service for service in hosted}
        self._guard = guard
        self._metrics = metrics
        self._streams = 0
        self.closing = False
        no_token: dict[int | str, dict[str, Any]] = {401: {"description": "The token is missing or wrong"}}
        self.router = router = APIRouter(dependencies=[Depends(guard)], responses=no_token)
        add, of_task = router.add_api_route, "/api/v1/tasks/{name}"
        add("/api/v1/tasks", self.tasks, summary="All tasks and their state")
        add("/api/v1/audit", self.audit, summary="What operators did, the latest first")
        add(of_task, self.task, summary="One task and its state")
        add(f"{of_task}/rounds", self.rounds, summary="Closed rounds, with sums by kind of update")
        add(f"{of_task}/versions", self.versions, summary="The models that were served")
        cannot: dict[int | str, dict[str, Any]] = {
            403: {"description": "The service requires no token, so nothing may be changed"},
            409: {"description": "There is no such model, or it is not kept any more"},
        }
        add(
            f"{of_task}/rollback",
            self.rollback,
            methods=["POST"],
            status_code=202,
            summary="Serve the model of an earlier round from now on, and go on from it",
            responses=cannot,
        )
        add(
            f"{of_task}/devices",
            self.devices,
            summary="The devices: what each does, why, and when it was last seen",
        )
        add(
            f"{of_task}/contributions",
            self.contributions,
            summary="Contributions and refusals, the latest first",
        )
        for path, answer, summary, form in (
            (f"{of_task}/model", self.model, "The served model, as safetensors", "application/octet-stream"),
            (
                f"{of_task}/events",
                self.events,
                "The state of the task, whenever it changes",
                "text/event-stream",
            ),
            ("/metrics", self.metrics, "For Prometheus", "text/plain"),
        ):
            replies: dict[int | str, dict[str, Any]] = {200: {"content": {form: {}}, "description": summary}}
            add(path, answer, summary=summary, responses=replies, response_class=Response)

    def tasks(self) -> list[TaskInfo]:
        return [_info(service) for service in self._hosted.values()]

    def task(self, name: Name) -> TaskInfo:
        return _info(self._of(name))

    def rounds(self, name: Name, after: Number = 0, limit: Limit = PAGE_LIMIT) -> RoundPage:
        return self._of(name).watch.rounds(after, limit)

    def versions(self, name: Name) -> list[ModelVersion]:
        hosted = self._of(name)
        try:
            return [_version(version) for version in versions_in(hosted.folder, hosted.database)]
        except (RunFolderError, DatabaseError) as error:
            raise HTTPException(503, str(error)) from None

    def audit(self, limit: Limit = 100) -> list[AuditEntry]:
        try:
            return audit.entries(self._audited)[:limit]
        except AuditError as error:
            raise HTTPException(503, str(error)) from None

    def rollback(self, name: Name, round: Number, request: Request) -> RollbackAnswer:  # noqa: A002 - its name in the URL
        hosted = self._of(name)
        if self._guard.open:
            raise HTTPException(403, "a rollback needs a token: set http.token_file")
        if hosted.watch.live().phase == "finished":
            raise HTTPException(
                409, f"the task is done: device-runtime models {hosted.folder} --rollback {round}"
            )
        try:
            with recorded(hosted.folder, self._guard.operator(request), "rollback", f"round {round}"):
                check_rollback(hosted.folder, round, hosted.database)
                run_files.request_rollback(hosted.folder, round)
        except RollbackError as error:
            raise HTTPException(409, str(error)) from None
        except (RunFolderError, DatabaseError, AuditError) as error:
            raise HTTPException(503, str(error)) from None
        return RollbackAnswer(round)

    def devices(
        self,
        name: Name,
        search: Annotated[str, Query(max_length=200)] = "",
        online: bool | None = None,
        offset: Number = 0,
        limit: Limit = 100,
    ) -> DevicePage:
        return self._of(name).watch.devices(DeviceFilter(search, online, offset, limit))

    def contributions(
        self,
        name: Name,
        before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
        limit: Limit = 100,
        device: Text = None,
        kind: Text = None,
        status: Status | None = None,
        round: Annotated[int | None, Query(ge=0, lt=2**63)] = None,  # noqa: A002 - its name in the URL
    ) -> Entries:
        try:
            return self._of(name).journal.page(Filter(before, limit, device, kind, status, round))
        except OSError as error:
            raise HTTPException(503, str(error)) from None

    def model(self, name: Name) -> StreamingResponse:
        hosted = self._of(name)
        try:
            file = (hosted.folder / SERVED).open("rb")  # stays readable if another file replaces it
        except OSError:
            raise HTTPException(404, "no round is closed yet: there is no served model") from None
        headers = {
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Content-Disposition": f'attachment; filename="{hosted.task.name}.safetensors"',
        }
        return StreamingResponse(_parts(file), media_type="application/octet-stream", headers=headers)

    async def events(self, name: Name, request: Request) -> StreamingResponse:
        hosted = self._of(name)
        if self._streams >= STREAMS:
            raise HTTPException(503, f"{STREAMS} live views are open already", {"Retry-After": "10"})
        return StreamingResponse(self._live(hosted, request), media_type="text/event-stream")

    def metrics(self) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _live(self, hosted: ServedTask, request: Request) -> AsyncIterator[bytes]:
        self._streams += 1
        sent, silent_s = None, 0.0
        try:
            while not self.closing and not await request.is_disconnected():
                live = _status(hosted)
                if (live.version, live.broker) != sent:
                    sent, silent_s = (live.version, live.broker), 0.0
                    yield b"event: live\ndata: " + msgspec.json.encode(live) + b"\n\n"
                elif silent_s >= COMMENT_S:
                    silent_s = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(EVENT_S)
                silent_s += EVENT_S
        finally:
            self._streams -= 1

    def _of(self, name: str) -> ServedTask:
        try:
            return self._hosted[name]
        except KeyError:
            raise HTTPException(404, f"there is no task of this name: {', '.join(self._hosted)}") from None


def _info(hosted: ServedTask) -> TaskInfo:
    task = hosted.task
    settings = msgspec.json.decode(task.json(), type=dict[str, object])
    program = metadata.version("device-runtime")
    return TaskInfo(task.name, task.bundle, str(hosted.folder), settings, _status(hosted), program)


def _status(hosted: ServedTask) -> TaskStatus:
    """The state of the task now, with that of the broker's connection."""
    return replace(hosted.watch.live(), broker=hosted.link.connected)


def _version(version: Made) -> ModelVersion:
    return ModelVersion(
        round=version.round,
        since=measured(version.published_s),
        accuracy=measured(version.eval_acc),
        loss=measured(version.eval_loss),
        sha256=version.sha256,
        size=version.size,
        kept=version.kept,
        served=version.served,
        note=version.note,
        metric=version.metric,
        metrics=version.metrics,
    )


def _parts(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while part := file.read(PART_BYTES):
            yield part
