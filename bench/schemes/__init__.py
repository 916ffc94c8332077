"""Schemes of others, and ours, behind one small interface; `registry` names them all."""
