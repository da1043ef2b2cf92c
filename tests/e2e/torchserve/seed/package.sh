# Package the model into a .mar archive
torch-model-archiver \
    --model-name resnet50 \
    --version 1.0 \
    --serialized-file resnet50_scripted.pt \
    --handler handler.py \
    --extra-files imagenet_classes.txt \
    --export-path model_store/
