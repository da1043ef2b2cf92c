"""The function for answers in several parts, in the module from which older handlers import it."""

from ..handler_utils.utils import send_intermediate_predict_response

__all__ = ["send_intermediate_predict_response"]
