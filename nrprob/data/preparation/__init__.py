"""Preparation of tables for fits."""
