# The dashboard in a container. At the top of a checkout:
#
#   docker build -f examples/dashboard.Dockerfile -t diag-dashboard .
#   docker run --rm -p 127.0.0.1:8501:8501 -v "$PWD/runs:/runs:ro" diag-dashboard
#
# Open the printed address: it holds a token. torch is not installed, and nothing leaves the machine.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY docs docs
COPY sample_traces sample_traces
COPY app app
COPY collectors collectors
COPY diag diag
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY constraints.txt /wheels/
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir -c /wheels/constraints.txt "$(ls /wheels/diag-*.whl)[dashboard]"
RUN useradd --create-home --uid 1000 diag
USER 1000
WORKDIR /home/diag
EXPOSE 8501
ENTRYPOINT ["diag"]
CMD ["dashboard", "/runs", "--host", "0.0.0.0", "--no-browser"]
