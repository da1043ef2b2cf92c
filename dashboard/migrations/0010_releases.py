import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    """The tables of releases. Each revision of a configuration becomes the release of the same number; 0011 adds the facts."""

    dependencies = [
        ("dashboard", "0009_event_process"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="release", name="dashboard_r_model_i_43dd11_idx"),
        # The field has no index here, because the index of the new table takes its name.
        migrations.AlterField(
            model_name="release",
            name="model",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="served_before",
                to="dashboard.model",
            ),
        ),
        migrations.RenameModel("Release", "ServedBefore"),
        migrations.RemoveConstraint(model_name="configrevision", name="revision_number_once"),
        migrations.RenameModel("ConfigRevision", "Release"),
        migrations.AlterField(
            model_name="release",
            name="model",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="releases", to="dashboard.model"
            ),
        ),
        migrations.AddConstraint(
            model_name="release",
            constraint=models.UniqueConstraint(fields=("model", "number"), name="release_number_once"),
        ),
        migrations.AddField(
            model_name='model',
            name='retention',
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name='modelsync',
            name='override',
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name='modelsync',
            name='release',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='dashboard.release'),
        ),
        migrations.AddField(
            model_name='release',
            name='aliases',
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name='release',
            name='kind',
            field=models.CharField(choices=[('publish', 'Published'), ('configure', 'Configured'), ('promote', 'Made live'), ('go_back', 'Gone back'), ('aliases', 'Aliases moved'), ('adopt', 'Adopted from the disk')], default='configure', max_length=16),
        ),
        migrations.AddField(
            model_name='release',
            name='returns_to',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='returned', to='dashboard.release'),
        ),
        migrations.AddField(
            model_name='release',
            name='versions',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='version',
            name='config',
            field=models.TextField(blank=True, default=''),
        ),
        migrations.CreateModel(
            name='ReleaseCheck',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('running', 'Running'), ('passed', 'Passed'), ('failed', 'Failed')], max_length=8)),
                ('steps', models.JSONField(default=list)),
                ('error', models.TextField(blank=True, default='')),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('started_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('ended_at', models.DateTimeField(null=True)),
                ('release', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='checks', to='dashboard.release')),
                ('server', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='dashboard.server')),
            ],
        ),
        migrations.CreateModel(
            name='ReleaseSpan',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('started_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('ended_at', models.DateTimeField(null=True)),
                ('model', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='spans', to='dashboard.model')),
                ('release', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='spans', to='dashboard.release')),
                ('server', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='dashboard.server')),
            ],
            options={
                'ordering': ['-started_at', '-id'],
            },
        ),
        migrations.AddConstraint(
            model_name='releasecheck',
            constraint=models.UniqueConstraint(fields=('release', 'server'), name='release_check_once'),
        ),
        migrations.AddIndex(
            model_name='releasespan',
            index=models.Index(fields=['model', '-started_at'], name='dashboard_r_model_i_79212f_idx'),
        ),
        migrations.AddConstraint(
            model_name='releasespan',
            constraint=models.UniqueConstraint(condition=models.Q(('ended_at__isnull', True)), fields=('model', 'server'), name='release_span_open_once'),
        ),
    ]
