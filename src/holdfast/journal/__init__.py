"""The journal: an append-only history of opaque records that survives crashes, damage and second writers."""

from holdfast.journal.claims import Claim
from holdfast.journal.durable_mark import oldest_volatile
from holdfast.journal.epoch import Holder, beat, claim_epoch, holder, is_fenced, release
from holdfast.journal.log import Durability, Journal
from holdfast.journal.reader import JournalContents, Position, TornTail, read_journal
from holdfast.journal.recovery import JournalFinding, RepairReport, repair_journal, verify_journal
from holdfast.journal.snapshot import Snapshot, SnapshotStore

__all__ = [
    "Claim",
    "Durability",
    "JournalFinding",
    "Holder",
    "Journal",
    "JournalContents",
    "Position",
    "RepairReport",
    "Snapshot",
    "SnapshotStore",
    "TornTail",
    "beat",
    "claim_epoch",
    "holder",
    "is_fenced",
    "oldest_volatile",
    "read_journal",
    "release",
    "repair_journal",
    "verify_journal",
]
