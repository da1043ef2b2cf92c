# Start TorchServe
torchserve \
    --start \
    --model-store model_store/ \
    --models resnet50=resnet50.mar \
    --ts-config torchserve_config.properties
