"""Addresses of the REST API, below /api/v1/."""

from django.urls import path

from dashboard.accounts import audit_rest
from dashboard.accounts import rest as accounts
from dashboard.catalog import rest as models
from dashboard.configuration import rest as configuration
from dashboard.examples import rest as examples
from dashboard.imports import rest as imports
from dashboard.jobs import rest as jobs
from dashboard.metrics import rest as metrics
from dashboard.playground import rest as inference
from dashboard.rollouts import rest as rollouts
from dashboard.servers import rest as servers
from dashboard.uploads import rest as uploads
from dashboard.versions import release_rest as releases
from dashboard.versions import rest as versions
from dashboard.web.rest import documentation

urlpatterns = [
    path("schema", documentation.Schema.as_view(), name="api_schema"),
    path("docs", documentation.Documentation.as_view(), name="api_docs"),
    path("me", accounts.Me.as_view(), name="api_me"),
    path("models", models.ModelList.as_view(), name="api_models"),
    path("models/<str:name>", models.ModelDetail.as_view(), name="api_model"),
    path("repository/unmanaged", models.Unmanaged.as_view(), name="api_unmanaged"),
    path("models/<str:name>/adopt", configuration.ModelAdopt.as_view(), name="api_model_adopt"),
    path("models/<str:name>/load", models.ModelLoad.as_view(), name="api_model_load"),
    path("models/<str:name>/unload", models.ModelUnload.as_view(), name="api_model_unload"),
    path("models/<str:name>/releases", releases.ReleaseList.as_view(), name="api_releases"),
    path("models/<str:name>/releases/<int:number>", releases.ReleaseDetail.as_view(), name="api_release"),
    path(
        "models/<str:name>/releases/<int:number>/go_back",
        releases.ReleaseGoBack.as_view(),
        name="api_release_go_back",
    ),
    path("rollouts", rollouts.AllRollouts.as_view(), name="api_all_rollouts"),
    path("models/<str:name>/rollouts", rollouts.RolloutList.as_view(), name="api_rollouts"),
    path("models/<str:name>/rollouts/<str:rollout>", rollouts.RolloutDetail.as_view(), name="api_rollout"),
    path(
        "models/<str:name>/rollouts/<str:rollout>/figures",
        rollouts.RolloutFigures.as_view(),
        name="api_rollout_figures",
    ),
    path(
        "models/<str:name>/rollouts/<str:rollout>/advance",
        rollouts.RolloutAdvance.as_view(),
        name="api_rollout_advance",
    ),
    path("models/<str:name>/rollouts/<str:rollout>/pause", rollouts.RolloutPause.as_view(), name="api_rollout_pause"),
    path(
        "models/<str:name>/rollouts/<str:rollout>/resume", rollouts.RolloutResume.as_view(), name="api_rollout_resume"
    ),
    path(
        "models/<str:name>/rollouts/<str:rollout>/promote",
        rollouts.RolloutPromote.as_view(),
        name="api_rollout_promote",
    ),
    path("models/<str:name>/rollouts/<str:rollout>/abort", rollouts.RolloutAbort.as_view(), name="api_rollout_abort"),
    path(
        "models/<str:name>/rollouts/<str:rollout>/keep_old",
        rollouts.RolloutKeepOld.as_view(),
        name="api_rollout_keep_old",
    ),
    path(
        "models/<str:name>/rollouts/<str:rollout>/unload_old",
        rollouts.RolloutUnloadOld.as_view(),
        name="api_rollout_unload_old",
    ),
    path(
        "models/<str:name>/rollouts/<str:rollout>/mismatches",
        rollouts.MismatchList.as_view(),
        name="api_rollout_mismatches",
    ),
    path(
        "models/<str:name>/rollouts/<str:rollout>/mismatches/<int:pk>",
        rollouts.MismatchDetail.as_view(),
        name="api_rollout_mismatch",
    ),
    path("models/<str:name>/go_back", releases.ModelGoBack.as_view(), name="api_model_go_back"),
    path("models/<str:name>/aliases", releases.Aliases.as_view(), name="api_aliases"),
    path("models/<str:name>/compare", releases.Compare.as_view(), name="api_compare"),
    path("models/<str:name>/log", models.ModelLog.as_view(), name="api_model_log"),
    path("models/<str:name>/infer", inference.Infer.as_view(), name="api_model_infer"),
    path("models/<str:name>/infer_stream", inference.InferStream.as_view(), name="api_model_infer_stream"),
    path(
        "models/<str:name>/versions/<str:version>/infer_stream",
        inference.InferStream.as_view(),
        name="api_version_infer_stream",
    ),
    path("models/<str:name>/config", configuration.Config.as_view(), name="api_config"),
    path("models/<str:name>/class_names", configuration.ClassNames.as_view(), name="api_class_names"),
    path("models/<str:name>/config/preview", configuration.ConfigPreview.as_view(), name="api_config_preview"),
    path("models/<str:name>/config/adopt", configuration.DriftAdopt.as_view(), name="api_config_adopt"),
    path("models/<str:name>/config/overwrite", configuration.DriftOverwrite.as_view(), name="api_config_overwrite"),
    path("models/<str:name>/retention", versions.ModelRetention.as_view(), name="api_retention"),
    path("models/<str:name>/versions", versions.VersionList.as_view(), name="api_versions"),
    path("models/<str:name>/versions/<int:number>", versions.VersionDetail.as_view(), name="api_version"),
    path(
        "models/<str:name>/versions/<int:number>/settings",
        versions.VersionSettings.as_view(),
        name="api_version_settings",
    ),
    path(
        "models/<str:name>/versions/<int:number>/make_live",
        versions.VersionMakeLive.as_view(),
        name="api_version_make_live",
    ),
    path(
        "models/<str:name>/versions/<int:number>/model_archive",
        versions.ModelArchive.as_view(),
        name="api_model_archive",
    ),
    path(
        "models/<str:name>/versions/<int:number>/archive", versions.VersionArchive.as_view(), name="api_version_archive"
    ),
    path(
        "models/<str:name>/versions/<int:number>/restore", versions.VersionRestore.as_view(), name="api_version_restore"
    ),
    path("models/<str:name>/versions/<str:version>/infer", inference.Infer.as_view(), name="api_version_infer"),
    path("models/<str:name>/examples", examples.ExampleList.as_view(), name="api_examples"),
    path("models/<str:name>/examples/<str:example>", examples.ExampleDetail.as_view(), name="api_example"),
    path(
        "models/<str:name>/examples/<str:example>/answer", examples.ExampleAnswer.as_view(), name="api_example_answer"
    ),
    path("models/<str:name>/golden_checks", examples.GoldenChecks.as_view(), name="api_golden_checks"),
    path("models/<str:name>/traffic_sample", examples.TrafficSample.as_view(), name="api_traffic_sample"),
    path("uploads", uploads.UploadList.as_view(), name="api_uploads"),
    path("uploads/<uuid:pk>", uploads.UploadDetail.as_view(), name="api_upload"),
    path("uploads/<uuid:pk>/files", uploads.UploadFiles.as_view(), name="api_upload_files"),
    path("uploads/<uuid:pk>/files/<int:number>", uploads.UploadChunk.as_view(), name="api_upload_file"),
    path("uploads/<uuid:pk>/complete", uploads.UploadComplete.as_view(), name="api_upload_complete"),
    path("uploads/<uuid:pk>/publish", uploads.UploadPublish.as_view(), name="api_upload_publish"),
    path("imports", imports.ImportList.as_view(), name="api_imports"),
    path("imports/folders", imports.ImportFolders.as_view(), name="api_import_folders"),
    path("imports/<int:pk>/resume", imports.ImportResume.as_view(), name="api_import_resume"),
    path("jobs", jobs.JobList.as_view(), name="api_jobs"),
    path("jobs/<int:pk>", jobs.JobDetail.as_view(), name="api_job"),
    path("jobs/<int:pk>/cancel", jobs.JobCancel.as_view(), name="api_job_cancel"),
    path("servers", servers.ServerList.as_view(), name="api_servers"),
    path("servers/<str:name>", servers.ServerDetail.as_view(), name="api_server"),
    path("servers/<str:name>/models", servers.ServerModels.as_view(), name="api_server_models"),
    path("servers/<str:name>/events", servers.ServerEvents.as_view(), name="api_server_events"),
    path("servers/<str:name>/restart", servers.ServerRestart.as_view(), name="api_server_restart"),
    path("metrics", metrics.Metrics.as_view(), name="api_metrics"),
    path("tokens", accounts.TokenList.as_view(), name="api_tokens"),
    path("tokens/<int:pk>", accounts.TokenDetail.as_view(), name="api_token"),
    path("accounts", accounts.AccountList.as_view(), name="api_accounts"),
    path("accounts/<int:pk>", accounts.AccountDetail.as_view(), name="api_account"),
    path("activity", audit_rest.ActivityList.as_view(), name="api_activity"),
    path("audit", audit_rest.AuditList.as_view(), name="api_audit"),
]
