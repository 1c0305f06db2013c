"""`omniagent new`, `omniagent upgrade` and what each command says where it cannot work. None of them needs an extra."""

from pathlib import Path

import pytest

import omniagent
from tests.package.wheels import Environment, new_environment

HERE = omniagent.__version__


@pytest.fixture(scope="module")
def bare_next(next_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the later version alone."""
    return new_environment(tmp_path_factory.mktemp("bare_next") / "venv", str(next_wheel))


@pytest.fixture
def shop(bare: Environment, tmp_path: Path) -> Path:
    """A new project."""
    done = bare.run_in(tmp_path, "omniagent", "new", "shop")
    assert done.returncode == 0, done.stderr
    return tmp_path / "shop"


def files(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_project_names_its_stacks_after_itself(shop: Path) -> None:
    assert (shop / "samconfig.toml").read_text().count('stack_name = "shop') == 2
    assert "`make" not in "".join(files(shop).values())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["new"], "Name the project: omniagent new shop"),
        (["new", "My_Shop"], "'My_Shop' cannot name a project, because it names the stack"),
        (["new", "shop"], "shop exists already. Choose another name, or delete it."),
        (["new", "shop/inner"], "shop is a project itself. Make the new one elsewhere."),
        (["run"], "is no project. Make one: omniagent new shop"),
        (["bake"], "There is no command bake. `omniagent help` lists them."),
    ],
)
def test_a_command_that_cannot_work_says_what_to_do(
    command: list[str], said: str, shop: Path, bare: Environment
) -> None:
    done = bare.run_in(shop.parent, "omniagent", *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_lists_every_command(bare: Environment) -> None:
    done = bare.run("omniagent", "--help")
    for command in ("new", "run", "chat", "test", "preflight", "deploy", "smoke", "turns", "stop-all", "upgrade"):
        assert f"  omniagent {command} " in done.stdout
    documents = Path(done.stdout.split()[-1])
    assert all((documents / page).is_file() for page in ("package.md", "deploy.md", "../README.md"))
    assert bare.run("omniagent").stdout == done.stdout
    assert bare.run("omniagent", "--version").stdout == f"{HERE}\n"


def test_a_command_without_its_extra_names_it(shop: Path, bare: Environment) -> None:
    done = bare.run_in(shop / "functions", "omniagent", "run")
    assert done.returncode == 1
    assert done.stderr.startswith("`omniagent run` needs ")
    assert done.stderr.endswith(": pip install 'omniagent[local]'\n")


def test_an_upgrade_changes_our_files_and_no_other(shop: Path, bare_next: Environment) -> None:
    (shop / "functions/agent.py").write_text("mine = True\n")
    (shop / "functions/chat/notes.md").write_text("beside a file of yours\n")
    before = files(shop)
    refused = bare_next.run_in(shop, "omniagent", "test")
    assert f"This project is of omniagent {HERE}, this command of 9.0.0." in refused.stderr
    done = bare_next.run_in(shop, "omniagent", "upgrade")
    assert done.returncode == 0, done.stderr
    after = files(shop)
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == {
        "functions/chat/app.py",
        "functions/summary/app.py",
        "functions/summary/handlers.py",
        "layers/core/omniagent.txt",
        "omniagent.lock",
        "template.yaml",
    }
    assert "functions/summary/app.py" not in after
    assert "omniagent==9.0.0" in after["layers/core/omniagent.txt"]


def test_an_upgrade_refuses_to_overwrite_an_edit(shop: Path, bare_next: Environment) -> None:
    handler = shop / "functions/chat/app.py"
    handler.write_text(handler.read_text() + "print('hello')\n")
    before = files(shop)
    done = bare_next.run_in(shop, "omniagent", "upgrade")
    assert done.returncode == 1
    assert done.stderr.startswith("functions/chat/app.py: edited, but replaced by an upgrade. Move your change")
    assert files(shop) == before
    handler.unlink()
    assert bare_next.run_in(shop, "omniagent", "upgrade").returncode == 0
    assert "of 9.0.0" in handler.read_text()


def test_an_upgrade_refuses_to_take_a_name_of_the_team(shop: Path, bare_next: Environment) -> None:
    mine = shop / "functions/summary/handlers.py"
    mine.write_text("mine = True\n")
    done = bare_next.run_in(shop, "omniagent", "upgrade")
    assert done.stderr == (
        "functions/summary/handlers.py: yours, but omniagent 9.0.0 has a file of this name. Rename yours.\n"
    )
    assert mine.read_text() == "mine = True\n"


def test_an_older_command_leaves_a_newer_project_alone(shop: Path, bare: Environment, bare_next: Environment) -> None:
    bare_next.run_in(shop, "omniagent", "upgrade")
    done = bare.run_in(shop, "omniagent", "upgrade")
    assert done.returncode == 1
    assert done.stderr.endswith("Install it: pip install 'omniagent[local]==9.0.0'\n")
