"""Reports: results and published values on one page."""

from nrprob.batch.report.page import write_report

__all__ = ["write_report"]
