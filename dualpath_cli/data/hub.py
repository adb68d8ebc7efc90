"""The Hugging Face hub, by huggingface_hub.

The hub is the one that HF_ENDPOINT names, the token that of HF_TOKEN or `hf auth login`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dualpath_cli.base.errors import RunFailed, UserError, of_content

if TYPE_CHECKING:
    from huggingface_hub import HfApi


FIRST_ANSWER_SECONDS = 15.0  # the time to wait for a server that has not answered yet


def connect(endpoint: str | None = None) -> "HfApi":
    """The hub's client, with the user's token or with False; nothing is asked yet."""
    from huggingface_hub import HfApi, get_token

    return HfApi(endpoint=endpoint, token=get_token() or False)


@contextmanager
def explained(what: str, page: str, api: "HfApi") -> Iterator[None]:
    """Turns an error of the hub about `what` into one line with the next step.

    `page` is the address of `what`. UserError is for names, rights and terms, RunFailed for the
    network, a transfer or the hub itself.
    """
    from huggingface_hub import errors

    yours = "your token (HF_TOKEN or `hf auth login`)"
    not_found = (
        f" is not on the hub, or is private: check its name at {page}; for a private one log in "
        f"by `hf auth login` or set HF_TOKEN, then run this again"
    )
    try:
        yield
        return
    except errors.HFValidationError:
        problem = " is not a name on the hub; give OWNER/NAME as on its page"
    except errors.GatedRepoError:
        account = (
            f"the account of {yours} has no access" if api.token else "log in and set HF_TOKEN"
        )
        problem = (
            f" is given out under terms ({account}): accept them at {page}, wait where the authors "
            "approve each request, log in by `hf auth login` or set HF_TOKEN to a token that may "
            f"read gated repositories, then run this again"
        )
    except errors.RepositoryNotFoundError:
        problem = not_found
    except errors.OfflineModeIsEnabled:
        problem = ": HF_HUB_OFFLINE is set; unset it and run this again"
    except errors.HfHubHTTPError as error:
        status, reason = error.response.status_code, _line(error.server_message)
        answer = f"{api.endpoint} answered {status} ({reason})"
        if status >= 500:
            raise RunFailed(f"{what}: {answer}; run this again later") from None
        if status == 401 and not api.token:
            problem = not_found
        elif status in (401, 403):
            problem = (
                f": the hub does not accept {yours} for this ({reason}); make another one or "
                f"extend its rights at {api.endpoint}/settings/tokens, and run this again"
            )
        else:
            problem = f": {answer}; run this again later"
    except (errors.HTTPError, TimeoutError) as error:  # httpx's, by huggingface_hub's name for it
        raise RunFailed(
            f"{what}: {api.endpoint} cannot be reached ({_line(str(error) or 'no answer')}); check "
            f"the network, and HF_ENDPOINT where it is set, then run this again"
        ) from None
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        # Of a transfer, or the answer of a server that is not the hub.
        why = of_content(error.__cause__ or error)
        raise RunFailed(f"{what} failed: {_line(why)}; run this again") from None
    raise UserError(f"{what}{problem}")


def _line(text: str | None) -> str:
    """A reason in one line; without the queries of addresses, which may sign an upload."""
    return " ".join(re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text or "no reason given").split())
