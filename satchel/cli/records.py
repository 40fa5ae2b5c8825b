"""The records that commands print with `--json`: their fields are a promise to scripts.

Each is a frozen dataclass whose fields are annotated with what they mean; docs/scripts.md is made from them.
Knows nothing of how a record is come by or printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

# -- sessions ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    session_id: Annotated[str, "32 hexadecimal digits, the same on all machines"]
    name: Annotated[str, "what it is called; unique on this machine"]
    manifest: Annotated[str, "SHA-256 of its newest save"]
    generation: Annotated[int, "saves so far"]
    updated_at: Annotated[str, "when it was saved last: ISO 8601, UTC"]
    model_name: Annotated[str, "what `--model` takes"]
    profile_name: Annotated[str, "what `--kv` takes"]
    archived_from: Annotated[str | None, "the profile before `sessions archive`"]
    turns: Annotated[int, "questions asked"]
    token_count: Annotated[int, "tokens of the context that is stored"]
    stored_bytes: Annotated[int, "of everything, shared blocks included"]
    title: Annotated[str, "the beginning of the first question"]


@dataclass(frozen=True, kw_only=True)
class MessageRecord:
    role: Annotated[str, "`system`, `user` or `assistant`"]
    content: Annotated[str, "the words as they are, not made safe for a terminal"]


@dataclass(frozen=True, kw_only=True)
class TalkRecord(SessionRecord):
    messages: Annotated[list[MessageRecord], "the talk, oldest first"]


@dataclass(frozen=True, kw_only=True)
class ArchivedRecord:
    session_id: Annotated[str, "of the session"]
    name: Annotated[str, "of the session"]
    profile: Annotated[str, "in which its context is stored now"]
    before_bytes: Annotated[int, "that its context took"]
    after_bytes: Annotated[int, "that it takes now"]
    freed_bytes: Annotated[int, "that the store has become smaller"]


@dataclass(frozen=True, kw_only=True)
class RemovedRecord:
    session_id: Annotated[str, "of the session"]
    name: Annotated[str, "as it was given"]


@dataclass(frozen=True, kw_only=True)
class ExportedRecord:
    session_id: Annotated[str, "of the session"]
    name: Annotated[str, "of the session"]
    format: Annotated[str, "as `--format` has it"]
    file: Annotated[str, "that was written"]
    bytes: Annotated[int, "of the file"]


@dataclass(frozen=True, kw_only=True)
class MadeRecord:
    name: Annotated[str, "of the new session"]
    messages: Annotated[int, "that it holds"]
    tokens: Annotated[int, "of context that came with it; 0: the words alone, to be read when resumed"]
    notices: Annotated[list[str], "what could not be taken over, and why"]


@dataclass(frozen=True, kw_only=True)
class FileTokens:
    path: Annotated[str, "as it stands in the context"]
    tokens: Annotated[int, "of its text"]


@dataclass(frozen=True, kw_only=True)
class IngestedRecord:
    name: Annotated[str, "of the session"]
    session_id: Annotated[str, "of the session"]
    files: Annotated[list[FileTokens], "the largest first"]
    read_tokens: Annotated[int, "that the model has read now"]
    reused_tokens: Annotated[int, "that were taken from the store"]


@dataclass(frozen=True, kw_only=True)
class SharedRecord:
    name: Annotated[str, "of the session"]
    link: Annotated[str | None, "address and key; null with `--output`"]
    expires_s: Annotated[float | None, "how long the link works; null with `--output`"]
    file: Annotated[str | None, "that was written with `--output`"]
    key: Annotated[str | None, "of that file"]


# -- answers -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AnswerRecord:
    text: Annotated[str, "the answer as the model wrote it"]
    stop_reason: Annotated[str, "`stop`, `length` (cut at --max-tokens) or `cancelled`"]
    model: Annotated[str, "that answered"]
    kv_profile: Annotated[str, "in which its context was held"]
    session: Annotated[str | None, "that it was asked behind; null: none"]
    prompt_tokens: Annotated[int, "that were read for it"]
    reused_tokens: Annotated[int, "that were read before: in its session, or by another one"]
    generated_tokens: Annotated[int, "of the answer"]
    prefill_tps: Annotated[float, "tokens a second, reading"]
    decode_tps: Annotated[float, "tokens a second, answering"]
    first_token_s: Annotated[float, "seconds from the question to the first token, the model being loaded"]
    seconds: Annotated[float, "seconds from the question to the end of the answer"]
    notices: Annotated[list[str], "what there was to say about how it went"]


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    number: Annotated[int, "by which the answer cites it"]
    title: Annotated[str, "of the page"]
    url: Annotated[str, "of the page"]
    snippet: Annotated[str, "what the search found in it"]
    cited: Annotated[bool, "whether the answer does"]


@dataclass(frozen=True, kw_only=True)
class FoundRecord:
    query: Annotated[str, "that was sent"]
    answer: Annotated[str | None, "with citations as [1]; null with `--sources-only`"]
    sources: Annotated[list[SourceRecord], "what was found"]
    notices: Annotated[list[str], "such as pages that could not be read"]


@dataclass(frozen=True, kw_only=True)
class CommandRecord:
    command: Annotated[str, "that was proposed"]
    touches: Annotated[list[str], "`reads`, `writes`, `network`, `privilege`, `destructive`, `cannot judge`"]
    reasons: Annotated[list[str], "why, part by part; none for what only reads"]
    ran: Annotated[bool, "whether it was run; only with `--yes`"]
    exit_code: Annotated[int | None, "its own; null if it did not run, or was stopped"]
    timed_out: Annotated[bool, "whether it ran longer than `--timeout`"]
    output: Annotated[str, "of both its streams"]
    summary: Annotated[str, "what the model says of that"]
    notices: Annotated[list[str], "what there was to say about how it went"]


# -- the store -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelUse:
    sessions: Annotated[int, "of this model"]
    tokens: Annotated[int, "of their contexts"]
    bytes: Annotated[int, "of all that they use"]


@dataclass(frozen=True, kw_only=True)
class StoreRecord:
    place: Annotated[str, "the store's folder"]
    sessions: Annotated[int, "that can be read"]
    blocks: Annotated[int, "that sessions use, each once"]
    bytes: Annotated[int, "of all but the index"]
    shared_bytes: Annotated[int, "that sessions would take more if none shared a block"]
    unreferenced_bytes: Annotated[int | None, "that no session uses; null if that is not known"]
    index_bytes: Annotated[int, "of the index"]
    models: Annotated[dict[str, ModelUse], "by the model's name"]
    faults: Annotated[list[str], "what cannot be read"]


@dataclass(frozen=True, kw_only=True)
class IndexedRecord:
    sessions: Annotated[int, "in the new index"]
    blocks: Annotated[int, "in the new index"]
    faults: Annotated[list[str], "what cannot be read"]


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    session: Annotated[str, "its name, or its id if the name cannot be read"]
    session_id: Annotated[str, "of the session"]
    object_id: Annotated[str, "SHA-256 of what is damaged or missing; empty for the session's head"]
    problem: Annotated[str, "what is wrong"]
    meaning: Annotated[str, "what that means for you"]


@dataclass(frozen=True, kw_only=True)
class VerifiedRecord:
    sessions: Annotated[int, "that were looked at"]
    manifests: Annotated[int, "likewise"]
    objects: Annotated[int, "blocks and tails, likewise"]
    faults: Annotated[list[FaultRecord], "what is damaged or missing"]


@dataclass(frozen=True, kw_only=True)
class CollectedRecord:
    blocks: Annotated[int, "deleted, or that would be"]
    manifests: Annotated[int, "likewise"]
    leftovers: Annotated[int, "files of killed writes, likewise"]
    freed_bytes: Annotated[int, "of all of these"]
    refused: Annotated[int, "files that the disk refused to delete"]
    younger_bytes: Annotated[int, "that nothing uses, and that are too young to be deleted"]
    faults: Annotated[list[str], "what cannot be read, which is why no more was deleted"]


@dataclass(frozen=True, kw_only=True)
class PrunedSessionRecord:
    session_id: Annotated[str, "of the session"]
    name: Annotated[str, "of the session"]
    freed_bytes: Annotated[int, "that its context took"]


@dataclass(frozen=True, kw_only=True)
class PrunedRecord:
    before_bytes: Annotated[int, "of the store"]
    after_bytes: Annotated[int, "of the store"]
    collected: Annotated[CollectedRecord, "what no session used"]
    sessions: Annotated[list[PrunedSessionRecord], "that lost their context and kept their words"]
    faults: Annotated[list[str], "what cannot be read, which is why no more was done"]


# -- sync ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ForkRecord:
    session_id: Annotated[str, "of the session that had changed on both sides"]
    name: Annotated[str, "its name"]
    fork_id: Annotated[str, "of the session in which this machine's side goes on"]
    fork_name: Annotated[str, "its name"]


@dataclass(frozen=True, kw_only=True)
class SyncedRecord:
    pushed: Annotated[list[str], "names of sessions that were sent"]
    pulled: Annotated[list[str], "names of sessions that were fetched"]
    removed: Annotated[list[str], "names of sessions that were removed here or there"]
    forks: Annotated[list[ForkRecord], "sessions that had changed on both sides"]
    notices: Annotated[list[str], "what there was to say about it"]
    faults: Annotated[list[str], "what is damaged, foreign, missing or older than it was"]
    sent_bytes: Annotated[int, "of what was sent"]
    received_bytes: Annotated[int, "of what was fetched"]


@dataclass(frozen=True, kw_only=True)
class SyncStateRecord:
    session_id: Annotated[str, "of the session"]
    name: Annotated[str, "of the session"]
    state: Annotated[str, "such as `in sync`, `to push`; or what is wrong with it"]
    number: Annotated[int, "of its newest entry in the remote; 0: none"]
    updated_at: Annotated[str | None, "when it was saved last: ISO 8601, UTC; null if that is not known"]


@dataclass(frozen=True, kw_only=True)
class SyncStatusRecord:
    url: Annotated[str, "of the remote"]
    endpoint: Annotated[str | None, "of an S3 service that is not AWS"]
    region: Annotated[str | None, "of the bucket; null for the one that is found by itself"]
    key_id: Annotated[str, "which key the remote is encrypted with"]
    exclusive: Annotated[bool, "whether the remote honours conditional writes"]
    auto: Annotated[bool, "whether each turn of a chat is synced"]
    sessions: Annotated[list[SyncStateRecord], "here and in the remote, the newest first"]


@dataclass(frozen=True, kw_only=True)
class RemoteCollectedRecord:
    blocks: Annotated[int, "deleted, or that would be"]
    manifests: Annotated[int, "likewise"]
    entries: Annotated[int, "that newer ones have superseded, likewise"]
    shares: Annotated[int, "whose links have expired, likewise"]
    probes: Annotated[int, "left over of setting up, likewise"]
    uploads: Annotated[int, "begun and never finished; a dry run does not count them"]
    freed_bytes: Annotated[int, "of all of these"]
    younger_bytes: Annotated[int, "that no session needs, and that are too young to be deleted"]
    faults: Annotated[list[str], "what cannot be read, which is why nothing was deleted"]


# -- setup ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CompletionRecord:
    shell: Annotated[str, "`bash`, `zsh` or `fish`"]
    script: Annotated[str, "the file that completes"]
    startup: Annotated[str | None, "the file that has the shell read it; null for fish, which finds it"]
    changed: Annotated[bool, "whether there was anything to do"]


# -- the stream of `ask --stream-json` --------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    event: Annotated[str, "which of them it is"]


@dataclass(frozen=True, kw_only=True)
class ProgressEvent(StreamEvent):
    event: Annotated[str, "`progress`"]
    done: Annotated[int, "tokens of the question and its files that are read"]
    total: Annotated[int, "that are to be read"]


@dataclass(frozen=True, kw_only=True)
class DeltaEvent(StreamEvent):
    event: Annotated[str, "`delta`"]
    text: Annotated[str, "the next piece of the answer"]


@dataclass(frozen=True, kw_only=True)
class NoticeEvent(StreamEvent):
    event: Annotated[str, "`notice`"]
    text: Annotated[str, "a line about how it goes"]


@dataclass(frozen=True, kw_only=True)
class DoneEvent(AnswerRecord, StreamEvent):
    event: Annotated[str, "`done`: the last line, if all went well"]


@dataclass(frozen=True, kw_only=True)
class ErrorEvent(StreamEvent):
    event: Annotated[str, "`error`: the last line, if it did not"]
    message: Annotated[str, "what is wrong"]
    hint: Annotated[str, "what to do about it; may be empty"]
    exit_code: Annotated[int, "of the program"]
