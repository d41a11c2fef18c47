"""`ddops completion`: the script a shell sources."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script.

    \b
    bash:  eval "$(ddops completion bash)"
    zsh:   eval "$(ddops completion zsh)"
    fish:  ddops completion fish > ~/.config/fish/completions/ddops.fish
    """
    from ddops.cli.root import root

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(found(root, {}, "ddops", "_DDOPS_COMPLETE").source())
