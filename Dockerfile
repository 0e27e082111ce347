# Training and reports on the CPU: docker build -t showerstack . && docker run --rm -v "$PWD:/data" -w /data showerstack --help
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY . /opt/showerstack
# On Linux torch brings several GB of CUDA libraries; --build-arg TORCH_INDEX_URL=... (the index of CPU builds that torch's
# installation page names) avoids them.
ARG TORCH_INDEX_URL=
RUN python -m pip install --no-cache-dir --constraint /opt/showerstack/constraints.txt ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch \
 && python -m pip install --no-cache-dir --constraint /opt/showerstack/constraints.txt '/opt/showerstack[train,report,physics,onnx,files,sky]'
ENV OMP_WAIT_POLICY=passive
ENTRYPOINT ["showerstack"]
