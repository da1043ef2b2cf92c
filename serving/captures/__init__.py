"""Captures: requests of clients with their answers, written to the folders that `repository.core.captures` describes.

The event loop's thread chooses requests and copies their tensors into a bounded queue; one other thread writes them. This
package never changes an answer. May import `telemetry`, `cli` and `core`. `serving.server` gives it the requests.
"""
