"""Not there: it is a streamer of transformers', for batches."""

raise ImportError(
    "ts.handler_utils.hf_batch_streamer is not there: stream with transformers' own TextIteratorStreamer, one for each "
    "request, and send what it gives by send_intermediate_predict_response"
)
