"""The checks, in the order in which they are made."""

from dashboard.alerts.table import PROCESS_SILENT
from dashboard.doctor import database, machine, processes, serving
from dashboard.doctor.check import Check
from dashboard.doctor.settings import variables

CHECKS = (
    Check("settings", "Settings", variables),
    Check("packages", "Python packages", machine.packages),
    Check("static", "Files of the pages", machine.static_files),
    Check("rights", "Rights of files", machine.rights),
    Check("writing", "Writing to the disk", machine.writing),
    Check("disk", "Space on the disk", machine.of_alerts("disk")),
    Check("mount", "Mount of the shared folder", machine.shared_folder),
    Check("ports", "Ports", machine.free_ports),
    Check("gpu", "GPU and driver", machine.gpu, limit_s=130),
    Check("silence", "Processes that are silent", machine.of_alerts(PROCESS_SILENT)),
    Check("pages", "Pages", processes.pages),
    Check("queue", "Job queue", processes.queue),
    Check("database", "Database", database.answers),
    Check("tables", "Tables of the database", database.tables, "database"),
    Check("installation", "Keys and shared folder", database.installation, "tables"),
    Check("clock", "Clock", database.clock, "database"),
    Check("sessions", "Sessions of the database", database.sessions, "database"),
    Check("processes", "Watcher and worker", processes.all_run),
    Check("leader", "Watcher that leads", processes.leader, "tables"),
    Check("jobs", "Jobs", processes.jobs, "tables"),
    Check("memory", "Memory", machine.of_alerts("memory"), "tables"),
    Check("ends", "Tokens and certificates", machine.of_alerts("ends_soon"), "tables"),
    Check("certificates", "Files of certificates", serving.certificate_files),
    Check("servers", "Inference servers", serving.answers, "tables"),
    Check("lookups", "Environments whose servers are found", serving.lookups, "tables"),
    Check("crashes", "Crashes", machine.of_alerts("crashes"), "tables"),
    Check("models", "Models", machine.of_alerts("not_ready", "load_failed", "serves_instead"), "tables"),
    Check("repository", "Model repository", serving.repository, "tables"),
    Check("bucket", "Bucket of the repository", serving.bucket, "tables"),
    Check("staging", "Staging folder", serving.leftovers, "tables"),
    Check("captures", "Captures", serving.captures, "tables"),
)
