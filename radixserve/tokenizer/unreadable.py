"""Parts of messages that a model which reads text only cannot see, the same for all dialects.

They are refused by their place and type, or, where the operator wants it so, a text stands in
their place which tells the model what is missing. They are never dropped.
"""

import logging

from radixserve.tokenizer.invalid import InvalidRequest, shown

log = logging.getLogger(__name__)

KINDS = {  # types of parts in OpenAI's chat and Responses and in Anthropic's Messages -> what it is
    "audio": "audio",
    "audio_url": "audio",
    "document": "document",
    "file": "file",
    "image": "image",
    "image_url": "image",
    "input_audio": "audio",
    "input_file": "file",
    "input_image": "image",
    "input_video": "video",
    "video": "video",
    "video_url": "video",
}


class UnreadableParts:
    """What becomes of such parts on one server; remembers which kinds it has logged."""

    def __init__(self, *, replaced: bool) -> None:
        self._replaced = replaced
        self._logged: set[str] = set()

    def placeholder(self, kind: object) -> str | None:
        """The text in place of a part of this type; None if it is refused, or no known type."""
        what = KINDS.get(kind) if self._replaced and isinstance(kind, str) else None
        if what is None:
            return None
        if what not in self._logged:
            self._logged.add(what)
            log.info("a placeholder stands for each part of the kind %s (said once)", what)
        return f"[{what} omitted: this model reads text only]"

    def text(self, kind: object, where: str) -> str:
        """The placeholder. InvalidRequest that names the place if there is none."""
        text = self.placeholder(kind)
        if text is None:
            message = f"{where} is of type {shown(kind)}: this model takes text only"
            raise InvalidRequest(message, where)
        return text
