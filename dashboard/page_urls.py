"""Addresses of the pages."""

from django.contrib.auth.views import LogoutView
from django.urls import path

from dashboard.accounts import audit_pages
from dashboard.accounts import pages as account
from dashboard.catalog import pages as models
from dashboard.configuration import pages as configuration
from dashboard.imports import pages as imports
from dashboard.jobs import pages as jobs
from dashboard.metrics import pages as metrics
from dashboard.overview import pages as overview
from dashboard.overview import search, work
from dashboard.playground import pages as playground
from dashboard.rollouts import pages as rollouts
from dashboard.servers import pages as servers
from dashboard.uploads import pages as uploads
from dashboard.versions import compare_pages, release_pages
from dashboard.versions import pages as versions

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("health", overview.health_part, name="health"),
    path("metrics", metrics.metrics, name="metrics"),
    path("places", search.places, name="places"),
    path("models/", models.models, name="models"),
    path("models/import", imports.store_import, name="store_import"),
    path("models/import/start", imports.store_import_start, name="store_import_start"),
    path("models/new", uploads.model_new, name="model_new"),
    path("models/new/existing", uploads.existing, name="model_existing"),
    path("models/<str:name>/", models.model, name="model"),
    path("models/<str:name>/adopt", configuration.models_adopt, name="model_adopt"),
    path("models/<str:name>/head", models.model_head, name="model_head"),
    path("models/<str:name>/versions", versions.model_versions, name="model_versions"),
    path("models/<str:name>/versions/<int:number>/live", versions.version_make_live, name="version_make_live"),
    path("models/<str:name>/versions/<int:number>/archive", versions.version_archive, name="version_archive"),
    path("models/<str:name>/versions/<int:number>/model-archive", versions.model_archive, name="model_archive"),
    path("models/<str:name>/versions/<int:number>/settings", versions.version_settings, name="version_settings"),
    path("models/<str:name>/versions/<int:number>/note", versions.version_annotate, name="version_annotate"),
    path("models/<str:name>/aliases", versions.model_aliases, name="model_aliases"),
    path("models/<str:name>/retention", versions.model_retention, name="model_retention"),
    path("models/<str:name>/releases/", release_pages.model_releases, name="model_releases"),
    path("models/<str:name>/releases/<int:number>/", release_pages.release, name="release"),
    path("models/<str:name>/releases/<int:number>/go-back", versions.release_go_back, name="release_go_back"),
    path("rollouts/", rollouts.all_rollouts, name="rollouts"),
    path("models/<str:name>/rollouts/", rollouts.model_rollouts, name="model_rollouts"),
    path("models/<str:name>/rollouts/new", rollouts.rollout_new, name="rollout_new"),
    path("models/<str:name>/rollouts/<str:rollout>/", rollouts.model_rollout, name="model_rollout"),
    path("models/<str:name>/rollouts/<str:rollout>/chart", rollouts.rollout_chart, name="rollout_chart"),
    path("models/<str:name>/rollouts/<str:rollout>/advance", rollouts.rollout_advance, name="rollout_advance"),
    path("models/<str:name>/rollouts/<str:rollout>/pause", rollouts.rollout_pause, name="rollout_pause"),
    path("models/<str:name>/rollouts/<str:rollout>/resume", rollouts.rollout_resume, name="rollout_resume"),
    path("models/<str:name>/rollouts/<str:rollout>/promote", rollouts.rollout_promote, name="rollout_promote"),
    path("models/<str:name>/rollouts/<str:rollout>/abort", rollouts.rollout_abort, name="rollout_abort"),
    path("models/<str:name>/rollouts/<str:rollout>/return", rollouts.rollout_return, name="rollout_return"),
    path("models/<str:name>/rollouts/<str:rollout>/keep-old", rollouts.rollout_keep_old, name="rollout_keep_old"),
    path("models/<str:name>/rollouts/<str:rollout>/unload-old", rollouts.rollout_unload_old, name="rollout_unload_old"),
    path("models/<str:name>/rollouts/<str:rollout>/unlike", rollouts.rollout_mismatches, name="rollout_mismatches"),
    path(
        "models/<str:name>/rollouts/<str:rollout>/unlike/<int:pk>", rollouts.rollout_mismatch, name="rollout_mismatch"
    ),
    path("models/<str:name>/rollouts/<str:rollout>/unlike/forget", rollouts.rollout_forget, name="rollout_forget"),
    path("models/<str:name>/compare", compare_pages.model_compare, name="model_compare"),
    path("models/<str:name>/load", models.model_load, name="model_load"),
    path("models/<str:name>/unload", models.model_unload, name="model_unload"),
    path("models/<str:name>/describe", models.model_describe, name="model_describe"),
    path("models/<str:name>/delete", models.model_delete, name="model_delete"),
    path("models/<str:name>/configuration", configuration.model_configuration, name="model_configuration"),
    path("models/<str:name>/configuration/preview", configuration.preview, name="config_preview"),
    path("models/<str:name>/drift/adopt", configuration.drift_adopt, name="drift_adopt"),
    path("models/<str:name>/drift/overwrite", configuration.drift_overwrite, name="drift_overwrite"),
    path("models/<str:name>/playground", playground.model_playground, name="model_playground"),
    path("models/<str:name>/activity", models.model_activity, name="model_activity"),
    path("models/<str:name>/log", models.model_log, name="model_log"),
    path("uploads/<uuid:pk>/", uploads.upload, name="upload"),
    path("uploads/<uuid:pk>/preview", uploads.preview, name="upload_preview"),
    path("uploads/<uuid:pk>/publish", uploads.publish, name="upload_publish"),
    path("uploads/<uuid:pk>/cancel", uploads.cancel, name="upload_cancel"),
    path("jobs/", work.jobs, name="jobs"),
    path("jobs/<int:pk>/", jobs.job, name="job"),
    path("jobs/<int:pk>/cancel", jobs.cancel, name="job_cancel"),
    path("jobs/<int:pk>/resume", imports.resume, name="import_resume"),
    path("servers/", servers.servers, name="servers"),
    path("servers/<slug:name>/", servers.server, name="server"),
    path("servers/<slug:name>/restart", servers.restart, name="server_restart"),
    path("activity/", audit_pages.activity, name="activity"),
    path("activity/export.csv", audit_pages.export, {"form": "csv"}, name="activity_csv"),
    path("activity/export.json", audit_pages.export, {"form": "json"}, name="activity_json"),
    path("activity/<str:source>-<int:pk>", audit_pages.activity_at, name="activity_at"),
    path("settings/", account.settings, name="settings"),
    path("settings/theme", account.theme_set, name="theme"),
    path("settings/password", account.password_change, name="password"),
    path("settings/tokens", account.token_new, name="token_new"),
    path("settings/tokens/<int:pk>/revoke", account.token_end, name="token_end"),
    path("settings/people", account.person_new, name="person_new"),
    path("settings/people/<int:pk>", account.person_change, name="person_change"),
    path("sign-in", account.sign_in, name="sign_in"),
    path("sign-out", LogoutView.as_view(), name="sign_out"),
]
