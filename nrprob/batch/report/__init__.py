"""Write HTML reports of runs, with published values for comparison."""

from nrprob.batch.report.page import write_report

__all__ = ["write_report"]
