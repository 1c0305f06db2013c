"""The local AWS."""

from collections.abc import Iterator

import pytest
from botocore.exceptions import BotoCoreError

from local.aws import Aws
from local.template import Template


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with Aws(folder=tmp_path_factory.mktemp("aws")) as server:
        yield server


def test_the_table_is_made_as_the_template_says(server: Aws) -> None:
    resources = server.deploy(Template())
    name = resources["TurnsTable"]["Ref"]
    table = server.dynamodb.describe_table(TableName=name)["Table"]
    assert [(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]] == [
        ("session_id", "HASH"),
        ("item", "RANGE"),
    ]
    ttl = server.dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert (ttl["AttributeName"], ttl["TimeToLiveStatus"]) == ("expires_at", "ENABLED")


def test_a_restarted_server_has_the_same_resources_and_address(server: Aws) -> None:
    resources = server.deploy(Template())
    arn = server.put_secret("kept", "one")
    server.stop()
    try:
        with pytest.raises(BotoCoreError):
            server.secrets.get_secret_value(SecretId=arn)
    finally:
        server.start()
    assert server.secrets.get_secret_value(SecretId=arn)["SecretString"] == "one"
    assert server.sqs.send_message(QueueUrl=resources["SummaryQueue"]["Ref"], MessageBody="{}")["MessageId"]
