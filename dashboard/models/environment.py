"""Environments: groups of inference servers, such as staging and production, and the releases that each should serve."""

from django.db import models
from django.utils import timezone

from dashboard.models.model import Model

PRODUCTION = "production"  # the environment of the bundled server, which always exists
CONTROL_HEADER = "slipway-control-key"


class ServerEnvironment(models.Model):
    """Servers that should serve the same releases.

    driven: whether `watch` loads and unloads there; else somebody else does, and the servers are only observed.
    everything: whether every model that is loaded is wanted; else only the rows of WantedRelease are.
    dns_name: a name that leads to the servers at these ports. kubernetes_service: namespace/name of a service whose pods are
    the servers. kubernetes_selector: namespace/labels of such pods, as "prod/app=triton". Of the three at most one is set;
    without any, a person lists the servers.
    kubernetes_address, kubernetes_token (sealed), kubernetes_ca_file: the API of its cluster, "" for the cluster in which this
    process runs.
    replicas_min, replicas_max: between which numbers a person sets the replicas of the servers in Kubernetes; a maximum of 0:
    nobody sets them here.
    control_key: the key of the control routes, sealed (shared.sealing); "" if they need none.
    ca_file, certificate, certificate_key: paths of PEM files on each machine; "" for the system's authorities, or none.
    """

    name = models.SlugField(max_length=40, unique=True)
    driven = models.BooleanField(default=True)
    everything = models.BooleanField(default=True)
    dns_name = models.CharField(max_length=253, blank=True, default="")
    http_port = models.PositiveIntegerField(default=8000)
    grpc_port = models.PositiveIntegerField(default=8001)
    metrics_port = models.PositiveIntegerField(default=8002)
    tls = models.BooleanField(default=False)  # whether servers that were found are called over TLS
    control_header = models.CharField(max_length=100, default=CONTROL_HEADER)
    control_key = models.CharField(max_length=1000, blank=True, default="")
    ca_file = models.CharField(max_length=500, blank=True, default="")
    certificate = models.CharField(max_length=500, blank=True, default="")
    certificate_key = models.CharField(max_length=500, blank=True, default="")
    kubernetes_service = models.CharField(max_length=130, blank=True, default="", db_default="")
    kubernetes_selector = models.CharField(max_length=300, blank=True, default="", db_default="")
    kubernetes_address = models.CharField(max_length=300, blank=True, default="", db_default="")
    kubernetes_token = models.TextField(blank=True, default="", db_default="")
    kubernetes_ca_file = models.CharField(max_length=500, blank=True, default="", db_default="")
    replicas_min = models.PositiveIntegerField(default=1, db_default=1)
    replicas_max = models.PositiveIntegerField(default=0, db_default=0)
    lookup_error = models.CharField(max_length=500, blank=True, default="")  # why its servers could not be looked up
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["created_at", "pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def source(self) -> str:
        """The name by which its servers are found; "" if a person lists them."""
        return self.kubernetes_service or self.kubernetes_selector or self.dns_name

    @property
    def in_kubernetes(self) -> bool:
        """Whether its servers are found by the API of a Kubernetes cluster."""
        return bool(self.kubernetes_service or self.kubernetes_selector)

    @property
    def namespace(self) -> str:
        """The Kubernetes namespace of its servers; "" if they are found otherwise."""
        return (self.kubernetes_service or self.kubernetes_selector).partition("/")[0]

    @property
    def connection(self) -> tuple[object, ...]:
        """What `watch` connects anew for."""
        secrets = (self.control_header, self.control_key, self.ca_file, self.certificate, self.certificate_key)
        return (self.driven, self.everything, self.source, self.tls, *secrets)


class WantedRelease(models.Model):
    """A model that an environment wants. release: None for the newest one. generation: rises with each change."""

    environment = models.ForeignKey(ServerEnvironment, on_delete=models.CASCADE, related_name="wanted")
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="wanted_in")
    release = models.ForeignKey("Release", null=True, on_delete=models.CASCADE, related_name="+")
    generation = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["model__name"]
        constraints = [models.UniqueConstraint(fields=["environment", "model"], name="wanted_release_once")]

    def __str__(self) -> str:
        return f"{self.model} in {self.environment}"
