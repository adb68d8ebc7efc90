"""Servers that may not answer, and the Hugging Face hub by huggingface_hub, the extra `hub`.

The hub is the one that HF_ENDPOINT names, the token that of HF_TOKEN or `hf auth login`.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from dualpath_cli.base.errors import RunFailed, UserError, of_content

if TYPE_CHECKING:
    from huggingface_hub import HfApi


FIRST_ANSWER_SECONDS = 15.0  # the time to wait for a server that has not answered yet

Result = TypeVar("Result")


def within(seconds: float | None, work: Callable[[], Result]) -> Result:
    """Returns or raises what `work` does, TimeoutError after `seconds`; its thread ends with us."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result(seconds)


def connect(what: str, endpoint: str | None = None) -> "HfApi":
    """The hub's client, with the user's token or with False; nothing is asked yet."""
    try:
        from huggingface_hub import HfApi, get_token
    except ImportError:
        raise UserError(f"{what} needs huggingface_hub: pip install 'dualpath[hub]'") from None
    return HfApi(endpoint=endpoint, token=get_token() or False)


@contextmanager
def explained(what: str, page: str, api: "HfApi", again: str = "run this again") -> Iterator[None]:
    """Turns what the hub answers about `what` into one line with the next step.

    `page` is its address, `again` the last step of each way out. UserError is for names, rights
    and terms, RunFailed where the network, a transfer or the hub itself fails.
    """
    from huggingface_hub import errors

    yours, tokens = "your token (HF_TOKEN or `hf auth login`)", f"{api.endpoint}/settings/tokens"
    not_found = (
        f" is not on the hub, or is private: check its name at {page}; for a private one log in "
        f"by `hf auth login` or set HF_TOKEN, then {again}"
    )
    try:
        yield
        return
    except errors.HFValidationError:
        problem = " is not a name on the hub; give OWNER/NAME as on its page"
    except errors.GatedRepoError:
        if not api.token:
            steps = f"accept them at {page}, log in by `hf auth login` or set HF_TOKEN"
        else:
            steps = (
                f"the account of {yours} has no access: accept them at {page} with that account, "
                "wait where the authors approve each request, allow a fine-grained token to read "
                "gated repositories"
            )
        problem = f" is given out under terms: {steps}, then {again}"
    except errors.RepositoryNotFoundError:
        problem = not_found
    except errors.OfflineModeIsEnabled:
        problem = f": HF_HUB_OFFLINE is set; unset it and {again}"
    except errors.HfHubHTTPError as error:
        status, reason = error.response.status_code, _line(error.server_message)
        if status == 401 and not api.token:
            problem = not_found
        elif status == 401:
            problem = f": the hub does not accept {yours}; make another at {tokens} and {again}"
        elif status == 403:
            problem = (
                f": {yours} does not allow this ({reason}); allow it at {tokens}, or take a name "
                f"that it has rights to, and {again}"
            )
        elif status >= 500:
            raise RunFailed(
                f"{what}: {api.endpoint} answered {status} ({reason}); {again} later"
            ) from None
        else:
            problem = f": {api.endpoint} answered {status} ({reason}); {again} later"
    except (errors.HTTPError, TimeoutError) as error:  # httpx's, by huggingface_hub's name for it
        raise RunFailed(
            f"{what}: {api.endpoint} cannot be reached ({_line(str(error) or 'no answer')}); check "
            f"the network, and HF_ENDPOINT where it is set, then {again}"
        ) from None
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        # Of a transfer, or an answer of no hub.
        why = of_content(error.__cause__ or error)
        raise RunFailed(f"{what} failed: {_line(why)}; {again}") from None
    raise UserError(f"{what}{problem}")


def _line(text: str | None) -> str:
    """A reason in one line; without the queries of addresses, which may sign an upload."""
    return " ".join(re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text or "no reason given").split())
