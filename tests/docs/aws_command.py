"""A stand-in for the `aws` command that the walk through the pages puts on the path.

It takes the operation and its options from botocore's own description of the service, as the real one does: what does
not exist is an error. The call goes to the local AWS.
"""

import json
import sys
from pathlib import Path
from typing import Any

import boto3
import jmespath  # type: ignore[import-untyped]  # it ships no types
from botocore import xform_name


def main(service: str, operation: str, *options: str) -> None:
    if (service, operation, options) == ("configure", "export-credentials", ("--format", "env")):
        keys = boto3.Session().get_credentials()
        assert keys
        print(f"export AWS_ACCESS_KEY_ID={keys.access_key} AWS_SECRET_ACCESS_KEY={keys.secret_key}")
        return
    if (service, operation, options) == ("configure", "get", ("region",)):
        print(boto3.Session().region_name)
        return
    client = boto3.client(service)  # type: ignore[call-overload]  # any service that a page names
    method = operation.replace("-", "_")
    [name] = [name for name in client.meta.service_model.operation_names if xform_name(name) == method]
    members = client.meta.service_model.operation_model(name).input_shape.members
    known = {f"--{xform_name(member, '-')}": (member, shape.type_name) for member, shape in members.items()}
    given, found = _read(list(options), known)
    if given.get("PolicyArn", "").startswith("arn:aws:iam::aws:policy/"):
        return  # AWS's own policies are not in the local AWS
    answer = getattr(client, method)(**given)
    answer.pop("ResponseMetadata", None)
    told = jmespath.search(found["--query"], answer) if "--query" in found else answer
    print(told if isinstance(told, str) else json.dumps(told, default=str))


def _read(options: list[str], known: dict[str, tuple[str, str]]) -> tuple[dict[str, Any], dict[str, str]]:
    given: dict[str, Any] = {}
    general: dict[str, str] = {}
    while options:
        option = options.pop(0)
        values = []
        while options and not options[0].startswith("--"):
            values.append(options.pop(0))
        if option in ("--query", "--output"):
            general[option] = values[0]
            continue
        if option not in known:
            sys.exit(f"aws: unknown option {option}")
        name, kind = known[option]
        texts = [
            Path(value.removeprefix("file://")).read_text() if value.startswith("file://") else value
            for value in values
        ]
        given[name] = texts if kind == "list" else texts[0]
    return given, general


if __name__ == "__main__":
    main(*sys.argv[1:])
