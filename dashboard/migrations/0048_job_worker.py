from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('dashboard', '0047_deployments_left_out'),
    ]

    expands = "An earlier program waits 30 s before it runs a job again whose worker has ended."

    operations = [
        migrations.AddField(
            model_name='job',
            name='worker',
            field=models.CharField(db_default='', default='', max_length=300),
        ),
        migrations.AddField(
            model_name='heartbeat',
            name='ended',
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
