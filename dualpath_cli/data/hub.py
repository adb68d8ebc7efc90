"""The Hugging Face hub, by huggingface_hub.

The hub is the one that HF_ENDPOINT names, the token that of HF_TOKEN or `hf auth
login`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dualpath_cli.base.errors import RunFailed, UserError, content_fault

if TYPE_CHECKING:
    from huggingface_hub import HfApi


FIRST_ANSWER_SECONDS = 15.0  # the time to wait for a server that has not answered yet


def hub_client() -> "HfApi":
    """The hub's client, with the user's token or with False; nothing is asked yet."""
    from huggingface_hub import HfApi, get_token

    return HfApi(token=get_token() or False)


@contextmanager
def explaining_errors(what: str, page: str, api: "HfApi") -> Iterator[None]:
    """Turns an error of the hub about `what`, whose address is `page`, into one line.

    UserError is for names, rights and terms, RunFailed for the network, a transfer or
    the hub.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise UserError(
            f"{what} is not a name on the hub; give OWNER/NAME as on its page"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        reason = _one_line(error.server_message)
        answer = f"{what}: {api.endpoint} answered {status} ({reason})"
        if status not in (401, 403, 404):
            raise RunFailed(f"{answer}; run this again later") from None

        raise UserError(
            f"{answer}; check its name at {page}, accept its terms there if it has "
            "any, log in by `hf auth login` or set HF_TOKEN to a token that may read "
            "it, then run this again"
        ) from None
    except (
        errors.HTTPError,
        OSError,
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:
        # httpx's, of a transfer, or the answer of a server that is not the hub.
        reason = _one_line(content_fault(error.__cause__ or error))
        raise RunFailed(
            f"{what}: {api.endpoint} failed ({reason}); check the network, and "
            "HF_ENDPOINT where it is set, then run this again"
        ) from None


def _one_line(text: str | None) -> str:
    """A reason in one line; without the queries of addresses, which may be signed."""
    plain = re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text or "no reason given")
    return " ".join(plain.split())
