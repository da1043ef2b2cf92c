from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0022_viewers")]

    operations = [migrations.RenameField("rolloutfigures", "told", "report")]
