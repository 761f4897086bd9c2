"""Searchers: who decides which configuration is tried next."""

from holdfast.search.base import Proposal, Proposer
from holdfast.search.basic_variant import BasicVariantGenerator

__all__ = ["BasicVariantGenerator", "Proposal", "Proposer"]
