# The recorder as a layer on the image of a training. At the top of a checkout:
#
#   docker build -f examples/recorder.Dockerfile --build-arg BASE=my-training --target recorder -t my-training:recorded .
#
# `recorder` adds one folder, and installs nothing: for runs on storage that all pods share, from Python 3.10 on.
# `packer` adds an environment of its own with the light diag and the client of S3 as well: for object stores, by
# /opt/diag/bin/diag run. It takes the image's python3, which has to be 3.11 or newer, with venv. For another store, put
# its package in place of s3fs: gcsfs, adlfs.
# The training's own Python, packages and working directory stay as they are.
ARG BASE=pytorch/pytorch:latest
FROM ${BASE} AS recorder
COPY collectors /opt/diag/collectors

FROM ${BASE} AS packer
COPY pyproject.toml README.md LICENSE constraints.txt /opt/diag-source/
COPY docs /opt/diag-source/docs
COPY sample_traces /opt/diag-source/sample_traces
COPY app /opt/diag-source/app
COPY collectors /opt/diag-source/collectors
COPY diag /opt/diag-source/diag
RUN python3 -m venv /opt/diag \
    && cd /opt/diag-source \
    && /opt/diag/bin/python -m pip install --no-cache-dir -c constraints.txt . s3fs \
    && cd / && package=$(/opt/diag/bin/python -c 'import os, diag; print(os.path.dirname(diag.__file__))') \
    && ln -s "$package/collectors" "$package/processes.py" /opt/diag/ \
    && rm -rf /opt/diag-source
