# The recorder as a layer on the image of a training. At the top of a checkout:
#
#   docker build -f examples/recorder.Dockerfile --build-arg BASE=my-training --target recorder -t my-training:recorded .
#
# `recorder` adds one folder, and installs nothing: for runs on storage that all pods share, from Python 3.10 on.
# `packer` adds an environment of its own with the light diag as well: for object stores, by /opt/diag/bin/diag run. It
# takes the image's python3, which has to be 3.11 or newer, with venv.
# The training's own Python and packages stay as they are.
ARG BASE=pytorch/pytorch:latest
FROM ${BASE} AS recorder
COPY collectors /opt/diag/collectors

FROM ${BASE} AS packer
WORKDIR /opt/diag-source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY docs docs
COPY sample_traces sample_traces
COPY app app
COPY collectors collectors
COPY diag diag
RUN python3 -m venv /opt/diag \
    && /opt/diag/bin/python -m pip install --no-cache-dir -c constraints.txt . s3fs \
    && cd / && package=$(/opt/diag/bin/python -c 'import os, diag; print(os.path.dirname(diag.__file__))') \
    && ln -s "$package/collectors" "$package/processes.py" /opt/diag/ \
    && rm -rf /opt/diag-source
WORKDIR /workspace
