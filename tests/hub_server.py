"""A stand-in for the Hugging Face hub: what an upload needs, with what was uploaded in memory."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """A repository: its files, the messages of its commits, and whether it is private."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """Repositories by id, for people who have the token.

    Large files (here: weights) are put one by one and named in the commit by their SHA-256, as on
    the real hub; small files are in the commit.
    """

    token: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def app(self) -> Starlette:
        """The server."""
        repo = "/{owner}/{name}"
        api = f"/api/models{repo}"
        routes = [
            Route("/api/repos/create", self._create, methods=["POST"]),
            Route("/api/validate-yaml", self._accept, methods=["POST"]),
            Route(api, self._info),
            Route(f"{api}/revision/main", self._info),
            Route(f"{api}/tree/main", self._tree),
            Route(f"{api}/preupload/main", self._preupload, methods=["POST"]),
            Route(f"{api}/commit/main", self._commit, methods=["POST"]),
            Route(f"{repo}.git/info/lfs/objects/batch", self._batch, methods=["POST"]),
            Route("/blobs/{oid}", self._put, methods=["PUT"]),
        ]
        return Starlette(
            routes=[Route(r.path, self._guarded(r), methods=r.methods) for r in routes]
        )

    def _guarded(self, route: Route) -> Any:
        """Blobs are put without the token, at an address that only its owner got."""

        async def endpoint(request: Request) -> Response:
            given = request.headers.get("authorization")
            if route.path != "/blobs/{oid}" and given != f"Bearer {self.token}":
                return JSONResponse({"error": "Invalid username or password."}, 401)
            return await route.endpoint(request)

        return endpoint

    def _repository(self, request: Request) -> Repository:
        return self.repositories["{owner}/{name}".format(**request.path_params)]

    async def _create(self, request: Request) -> Response:
        body = await request.json()
        name = f"{body['organization']}/{body['name']}"
        url = f"{request.base_url}{name}"
        if name in self.repositories:
            return JSONResponse({"error": "exists", "url": url}, 409)
        self.repositories[name] = Repository(body.get("visibility") == "private")
        return JSONResponse({"url": url})

    async def _accept(self, _: Request) -> Response:
        return JSONResponse({"errors": [], "warnings": []})

    async def _info(self, request: Request) -> Response:
        repository = self._repository(request)
        name = "{owner}/{name}".format(**request.path_params)
        found = {"id": name, "private": repository.private, "sha": COMMIT, "tags": []}
        siblings = [{"rfilename": path} for path in repository.files]
        return JSONResponse({**found, "siblings": siblings})

    async def _tree(self, request: Request) -> Response:
        files = self._repository(request).files
        return JSONResponse(
            [
                {"type": "file", "path": path, "size": len(content), "oid": COMMIT}
                for path, content in files.items()
            ]
        )

    async def _preupload(self, request: Request) -> Response:
        paths = [file["path"] for file in (await request.json())["files"]]
        modes = {True: "lfs", False: "regular"}
        return JSONResponse(
            {
                "files": [
                    {
                        "path": path,
                        "uploadMode": modes[path.endswith(".safetensors")],
                        "shouldIgnore": False,
                    }
                    for path in paths
                ]
            }
        )

    async def _batch(self, request: Request) -> Response:
        objects = (await request.json())["objects"]
        upload = [
            {
                **one,
                "actions": {"upload": {"href": f"{request.base_url}blobs/{one['oid']}"}},
            }
            for one in objects
        ]
        return JSONResponse({"transfer": "basic", "objects": upload})

    async def _put(self, request: Request) -> Response:
        self.blobs[request.path_params["oid"]] = await request.body()
        return Response()

    async def _commit(self, request: Request) -> Response:
        repository = self._repository(request)
        for line in (await request.body()).splitlines():
            operation = json.loads(line)
            value = operation["value"]
            match operation["key"]:
                case "header":
                    repository.messages.append(value["summary"])
                case "file":
                    repository.files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    repository.files[value["path"]] = self.blobs[value["oid"]]
                case "deletedFile":
                    del repository.files[value["path"]]
                case other:
                    raise ValueError(other)
        name = "{owner}/{name}".format(**request.path_params)
        url = f"{request.base_url}{name}/commit/{COMMIT}"
        return JSONResponse({"success": True, "commitOid": COMMIT, "commitUrl": url})
