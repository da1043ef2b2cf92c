"""Answers in several parts, at the place where older handlers import that from."""

from ..handler_utils.utils import send_intermediate_predict_response

__all__ = ["send_intermediate_predict_response"]
