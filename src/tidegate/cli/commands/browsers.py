"""`tidegate browsers`: lists the browsers signed in to the chat page, and signs them out."""

from pathlib import Path

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import local_time, plural, print_json, print_table


@click.group("browsers")
def command() -> None:
    """List the browsers signed in to the chat page, or sign them out."""


@command.command("list")
@home_option
@json_option
def list_(home: Path, as_json: bool) -> None:
    """List the signed-in browsers of all users."""
    from tidegate.cli.client import GatewayClient

    browsers = GatewayClient(home).call("GET", "/api/browsers")["browsers"]
    if as_json:
        print_json(browsers)
        return
    rows = [
        (
            each["id"],
            each["name"],
            each["browser"],
            local_time(each["created"]),
            local_time(each["used"]),
            local_time(each["expires"]),
        )
        for each in browsers
    ]
    heads = ("id", "principal", "browser", "signed in", "last used", "expires")
    print_table(heads, rows, empty="No browser is signed in.")


@command.command("revoke")
@click.argument("browser_id", required=False)
@click.option("--all", "everyone", is_flag=True, help="Sign out every browser of every user.")
@home_option
@json_option
def revoke(browser_id: str | None, everyone: bool, home: Path, as_json: bool) -> None:
    """Sign out the browser with this id (see `tidegate browsers list`), or all browsers."""
    from tidegate.cli.client import GatewayClient

    if (browser_id is None) is not everyone:
        raise click.UsageError("Specify the id of a browser, or --all.")
    api = GatewayClient(home)
    if browser_id is None:
        count = api.call("DELETE", "/api/browsers", query={"everyone": "true"})["signed_out"]
    else:
        api.call("DELETE", api.browser(browser_id))
        count = 1
    if as_json:
        print_json({"signed_out": count})
    else:
        print(f"Signed out {plural(count, 'browser')}.")
