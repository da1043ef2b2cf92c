"""object_detector: boxes with their labels and scores."""

from typing import Any

from ..utils.util import map_class_to_label
from .vision_handler import VisionHandler, image_transforms

_transforms = image_transforms()


class ObjectDetector(VisionHandler):
    """Answers, for each image, with the boxes whose score is at least `threshold`: {label: [x1, y1, x2, y2], "score": ...}."""

    image_processing = _transforms.Compose([_transforms.ToTensor()])
    threshold = 0.5

    def postprocess(self, data: Any) -> list[Any]:
        return [self._boxes_of(found) for found in data]

    def _boxes_of(self, found: Any) -> list[dict[str, Any]]:
        """Return the boxes that a torchvision model has found in one image."""
        chosen = found["scores"] >= self.threshold
        boxes, classes, scores = (found[name][chosen].tolist() for name in ("boxes", "labels", "scores"))
        return [
            {**map_class_to_label([[box]], self.mapping, [[one]])[0], "score": score}
            for box, one, score in zip(boxes, classes, scores, strict=True)
        ]
