"""How a user's mistake leaves the program: one line on the error stream, exit code 2, no traceback."""

import os
import sys
from typing import Any

import click


class UserError(click.ClickException):
    """A mistake of the user's: one line, exit code 2."""

    exit_code = 2


class UserErrorGroup(click.Group):
    """Commands whose ValueError (what a user can mend) ends the program in one line, without a traceback."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """The context of the program's own flags."""
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise _one_line(error, "jpaged") from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _one_line(error, f"{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip()) from error
        except (ValueError, NotImplementedError) as error:
            raise UserError(" ".join(str(error).split())) from error
        except BrokenPipeError:
            # The reader has gone (`| head`): nothing is left to say, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)


def _one_line(error: click.UsageError, command: str) -> click.ClickException:
    """A wrong flag or command without the usage lines; a command without arguments still shows its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    if error.ctx is not None:
        command = error.ctx.command_path
    return UserError(f"{' '.join(error.format_message().split())} (see {command} --help)")
