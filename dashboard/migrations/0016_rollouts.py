"""Adds rollouts with their plans, the reports of servers about them, and the link from a release to its rollout."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('dashboard', '0015_span_indexes'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='release',
            name='traffic',
            field=models.JSONField(default=dict),
        ),
        migrations.AlterField(
            model_name='release',
            name='kind',
            field=models.CharField(choices=[('publish', 'Published'), ('configure', 'Configured'), ('promote', 'Made live'), ('go_back', 'Gone back'), ('aliases', 'Aliases moved'), ('adopt', 'Adopted from the disk'), ('rollout', 'Step of a rollout')], default='configure', max_length=16),
        ),
        migrations.AlterField(
            model_name='serverevent',
            name='kind',
            field=models.CharField(choices=[('started', 'Started'), ('ready', 'Ready'), ('crashed', 'Crashed'), ('restarted', 'Restarted'), ('stopped', 'Stopped'), ('unreachable', 'Unreachable'), ('model_loaded', 'Model loaded'), ('model_unloaded', 'Model unloaded'), ('model_failed', 'Model failed'), ('breached', 'Guardrail breached'), ('repaired', 'Repaired')], max_length=24),
        ),
        migrations.CreateModel(
            name='Rollout',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=64, unique=True)),
                ('kind', models.CharField(choices=[('shadow', 'Shadow'), ('canary', 'Canary'), ('ab', 'A/B test')], max_length=8)),
                ('state', models.CharField(choices=[('running', 'Running'), ('paused', 'Paused'), ('holding', 'Promoted, old version held'), ('done', 'Done'), ('aborted', 'Aborted'), ('rolled_back', 'Rolled back')], default='running', max_length=12)),
                ('stable', models.JSONField()),
                ('candidate', models.JSONField()),
                ('plan', models.JSONField()),
                ('step', models.PositiveSmallIntegerField(default=0)),
                ('step_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('reason', models.TextField(blank=True, default='')),
                ('trouble', models.TextField(blank=True, default='')),
                ('started_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('ended_at', models.DateTimeField(null=True)),
                ('hold_until', models.DateTimeField(null=True)),
                ('created_by_name', models.CharField(blank=True, default='', max_length=150)),
                ('ended_by_name', models.CharField(blank=True, default='', max_length=150)),
                ('base', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='dashboard.release')),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('model', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rollouts', to='dashboard.model')),
                ('step_release', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='dashboard.release')),
            ],
            options={
                'ordering': ['-started_at', '-id'],
            },
        ),
        migrations.AddField(
            model_name='release',
            name='rollout',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='releases', to='dashboard.rollout'),
        ),
        migrations.CreateModel(
            name='RolloutFigures',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('instance', models.CharField(blank=True, default='', max_length=64)),
                ('told', models.JSONField()),
                ('earlier', models.JSONField(default=dict)),
                ('every_s', models.PositiveIntegerField(default=0)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('rollout', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='figures', to='dashboard.rollout')),
                ('server', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='dashboard.server')),
            ],
        ),
        migrations.CreateModel(
            name='RolloutMismatch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveBigIntegerField()),
                ('at', models.DateTimeField()),
                ('score', models.FloatField()),
                ('detail', models.TextField(blank=True, default='')),
                ('size_bytes', models.PositiveIntegerField(default=0)),
                ('data', models.JSONField()),
                ('rollout', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='mismatches', to='dashboard.rollout')),
                ('server', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='dashboard.server')),
            ],
            options={
                'ordering': ['-score', '-at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='RolloutSample',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.PositiveBigIntegerField()),
                ('data', models.JSONField()),
                ('rollout', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='samples', to='dashboard.rollout')),
                ('server', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='dashboard.server')),
            ],
            options={
                'ordering': ['at'],
            },
        ),
        migrations.AddIndex(
            model_name='rollout',
            index=models.Index(fields=['model', '-started_at'], name='rollout_of_model'),
        ),
        migrations.AddIndex(
            model_name='rollout',
            index=models.Index(fields=['state'], name='rollout_of_state'),
        ),
        migrations.AddConstraint(
            model_name='rollout',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ['running', 'paused', 'holding'])), fields=('model',), name='rollout_open_once'),
        ),
        migrations.AddConstraint(
            model_name='rolloutfigures',
            constraint=models.UniqueConstraint(fields=('rollout', 'server'), name='rollout_figures_once'),
        ),
        migrations.AddConstraint(
            model_name='rolloutmismatch',
            constraint=models.UniqueConstraint(fields=('rollout', 'server', 'at', 'number'), name='rollout_mismatch_once'),
        ),
        migrations.AddConstraint(
            model_name='rolloutsample',
            constraint=models.UniqueConstraint(fields=('rollout', 'server', 'at'), name='rollout_sample_once'),
        ),
    ]
