"""Examples over REST: keeping, changing and running them; running all golden ones; sampling traffic."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import CLIENT_DATA, Right
from dashboard.catalog.selectors import model_get
from dashboard.examples import serializers
from dashboard.examples.runs import example_answer, golden_run
from dashboard.examples.selectors import example_get, example_shown, examples
from dashboard.examples.services import example_change, example_create, example_delete
from dashboard.examples.traffic import traffic_sample
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless
from repository.core.golden import MAX_BYTES

# The largest example, with room for the spaces and nested lists of its JSON.
_BODY_BYTES = 4 * MAX_BYTES


@at("models/<str:name>/examples", "api_examples")
class ExampleList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.OPERATE}
    max_body_bytes = _BODY_BYTES

    @extend_schema(operation_id="models_examples_list", responses=serializers.ExampleSerializer(many=True))
    def get(self, request: Request, name: str) -> Response:
        """The examples of a model by name, without their tensors."""
        return self.page(examples(model_get(name)), serializers.ExampleSerializer)

    @extend_schema(request=serializers.ExampleRequestSerializer, responses={201: serializers.ExampleDetailSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Keeps a request by a name. A golden request also needs its expected outputs."""
        data = data_of(request, serializers.ExampleRequestSerializer)
        example = example_create(model=model_get(name), actor=self.actor, **data)
        return Response(serializers.ExampleDetailSerializer(example).data, status=201)


@at("models/<str:name>/examples/<str:example>", "api_example")
class ExampleDetail(Endpoint):
    rights = {"GET": Right.VIEW, "PATCH": Right.OPERATE, "DELETE": Right.OPERATE}
    max_body_bytes = _BODY_BYTES

    @extend_schema(responses=serializers.ExampleDetailSerializer)
    def get(self, request: Request, name: str, example: str) -> Response:
        """An example with its tensors. An example from live traffic needs the right to operate."""
        found = example_shown(model_get(name), example, self.actor)
        return Response(serializers.ExampleDetailSerializer(found).data)

    @extend_schema(request=serializers.ExampleChangeSerializer, responses=serializers.ExampleDetailSerializer)
    def patch(self, request: Request, name: str, example: str) -> Response:
        """Renames an example, or changes its request, expected outputs, tolerances, or whether it is golden."""
        data = data_of(request, serializers.ExampleChangeSerializer)
        changed = example_change(example=example_get(model_get(name), example), actor=self.actor, **data)
        return Response(serializers.ExampleDetailSerializer(changed).data)

    @fieldless(responses={204: None})
    def delete(self, request: Request, name: str, example: str) -> Response:
        """Deletes an example."""
        example_delete(example=example_get(model_get(name), example), actor=self.actor)
        return Response(status=204)


@at("models/<str:name>/examples/<str:example>/answer", "api_example_answer")
class ExampleAnswer(Endpoint):
    rights = {"POST": Right.INFER}

    @extend_schema(request=serializers.AskSerializer, responses=serializers.AnswerSerializer)
    def post(self, request: Request, name: str, example: str) -> Response:
        """Sends the example to a server, and returns the outputs in the form of expected outputs."""
        asked = data_of(request, serializers.AskSerializer)
        found = example_shown(model_get(name), example, self.actor)
        return Response(example_answer(example=found, actor=self.actor, **asked))


@at("models/<str:name>/golden_checks", "api_golden_checks")
class GoldenChecks(Endpoint):
    rights = {"POST": Right.INFER}

    @extend_schema(request=serializers.AskSerializer, responses=serializers.GoldenRunSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Runs every golden request of a model against the serving version of a server, and reports which passed."""
        asked = data_of(request, serializers.AskSerializer)
        results = golden_run(model=model_get(name), actor=self.actor, **asked)
        found = {"passed": all(result.passed for result in results), "results": results}
        return Response(serializers.GoldenRunSerializer(found).data)


@at("models/<str:name>/traffic_sample", "api_traffic_sample")
class TrafficSample(Endpoint):
    rights = {"POST": CLIENT_DATA}

    @extend_schema(request=serializers.SamplingRequestSerializer, responses=serializers.SamplingSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Shows the next requests that clients send to a model, with their answers, and keeps none of them."""
        data = data_of(request, serializers.SamplingRequestSerializer)
        sampling = traffic_sample(model=model_get(name), actor=self.actor, **data)
        return Response(serializers.SamplingSerializer(sampling).data)
