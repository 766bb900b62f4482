"""Accounting: pure functions from traces to footprints. No files, no clocks, no frameworks."""

from joulemap.accounting.account import Account
from joulemap.accounting.attribute import RULES, Rule, attribute
from joulemap.accounting.footprint import Footprint
from joulemap.processes import ProcessShares

__all__ = ["RULES", "Account", "Footprint", "ProcessShares", "Rule", "attribute"]
